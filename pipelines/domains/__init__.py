"""What each domain does before and after its rollouts: task sources, proof, synthesis, rows."""
