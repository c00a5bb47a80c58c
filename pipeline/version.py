"""The version, on its own so that every file can name it without importing the whole pipeline."""

VERSION = "0.1.0"
