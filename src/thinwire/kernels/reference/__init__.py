"""Every primitive in plain torch: slow and simple, for any device.

The faster kernels are tested against it, and it runs where there is none.
"""
