"""Plugins: what each declares, and which are installed. This package names none of them."""
