"""Cases of the ops that have parameters or several outputs: one module per family."""
