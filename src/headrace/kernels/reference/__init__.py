"""The meaning of every op, in NumPy: short and obviously right. Fast faces are held to these.

Each face takes the operands of its Call (native/include/plan.h) as arrays and numbers, and works row by row where
a batched NumPy call would let a row depend on its company.
"""
