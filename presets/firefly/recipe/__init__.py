"""The recipe that makes Firefly: a toy world, a tiny text encoder, a VAE and a denoiser, all trained on a
CPU.
"""
