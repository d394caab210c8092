"""Coverage-guided fuzzing of the decoders: `make fuzz`."""
