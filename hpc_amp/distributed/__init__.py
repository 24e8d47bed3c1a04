"""Who am I among the ranks, and how do the ranks meet. Job side; nothing here imports torch at
import time except `setup`."""
