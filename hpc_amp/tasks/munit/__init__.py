"""MUNIT (Huang et al., 2018): translation between two domains, in any of many styles."""
