"""Data of conditional generators: pairs, two domains, and classes with reference images."""
