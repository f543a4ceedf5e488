"""Long Range Arena: classify sequences of up to 16,384 symbols."""
