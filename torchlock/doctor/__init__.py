"""Says why CUDA is unavailable to PyTorch, and what to type.

Standard library only: it also runs where torch cannot be imported. Evidence is data
(`evidence`), rules are pure functions from evidence to findings (`rules`), and only `probes`
looks at the machine.
"""
