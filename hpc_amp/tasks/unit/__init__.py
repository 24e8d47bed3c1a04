"""UNIT (Liu, Breuel & Kautz, 2017): translation between two domains through a shared latent
space."""
