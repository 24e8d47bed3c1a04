"""Jobs from configuration to result: plan, render, submit, follow, report. Submit side."""
