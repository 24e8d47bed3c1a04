"""SPADE (Park, Liu, Wang & Zhu, 2019): images from label maps, whose normalisation layers see the
map."""
