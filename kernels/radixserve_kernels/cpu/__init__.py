"""Kernels in C++ for x86-64 processors, compiled at first use and kept in a cache."""
