"""Material to learn from: ``clips`` decodes clips, ``scenes`` draws short videos, masks to code
them with and noise.
"""
