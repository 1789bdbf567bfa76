"""What workers need of each domain: worlds, harnesses, graders, judges."""
