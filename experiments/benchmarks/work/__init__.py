"""The benchmarks' workloads, the contenders, and the processing of their figures."""
