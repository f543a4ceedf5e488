"""Long Range Arena: what a sequence of up to 16,384 symbols is, in one word."""
