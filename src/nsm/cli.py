"""The command line: subcommand → function. It parses and prints, and computes nothing."""
