"""The paper, run again: its tables and figures, one module each, and the report that compares them with ours."""
