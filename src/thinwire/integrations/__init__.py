"""Callbacks for training frameworks; each module imports the framework of its name.

Where a framework gives its user the wrapped model, as Accelerate, Fabric and Ray Train
do, `thinwire.attach` is all there is to call: docs/guides/frameworks.md.
"""
