"""Puts the NVIDIA container toolkit on a node and takes every change back."""
