"""dithc trains Diffusion Transformers on CPU clusters, from satellite scenes to FID scores."""
