"""What every layer uses and no field owns: suggestions, imports by name, numbers as text."""
