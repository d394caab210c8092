"""Other ways to train with little communication, to compare with: no part of thinwire.

They work on the gradients of all virtual workers at once and count what real ones would
send.
"""
