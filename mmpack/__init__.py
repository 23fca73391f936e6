"""mmpack: exactly filled, balanced, resumable THD batches of image-text data."""

__version__ = "0.1.0"
