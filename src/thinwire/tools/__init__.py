"""Tools beside the library: benchmarks, plan, lab, demo and the command line."""
