"""Question sheets: hidden tests that ask what tested code computes, and hold no answers (decision 103)."""
