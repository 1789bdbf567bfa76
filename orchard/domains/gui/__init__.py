"""Commands of the domain GUI: tasks on sites, the funnel, judging again."""
