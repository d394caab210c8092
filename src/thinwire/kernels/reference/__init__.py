"""Every primitive in plain torch: slow, simple, right on any device.

The faster kernels are tested against it, and it runs where there is none.
"""
