"""What is gained where a model may pass on the images that it is unsure of."""
