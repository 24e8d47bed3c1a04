"""DCGAN (Radford, Metz & Chintala, 2016): a generator of images and a discriminator that tells them
from real images."""
