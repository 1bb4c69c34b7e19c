"""Kernels: what `nsm.functional` defines, in one pass over memory. Each equals its reference, or it is not here."""
