"""Commands of the domain Claw: synthesis of worlds of services."""
