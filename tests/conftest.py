"""Settings for all tests."""

from hypothesis import settings

settings.register_profile("meshmend", deadline=None, print_blob=True)
settings.load_profile("meshmend")
