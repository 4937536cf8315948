"""Facts and formulas that several stages share: collective conventions, kernel classes, hardware."""
