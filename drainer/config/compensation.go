package config

import "github.com/agentoutbox/drainer/dispatch"

// Uncompensated names the tools that act and say neither what undoes them nor
// that there is nothing to undo. A run that used one cannot be compensated. It
// is empty where no failure compensates a run.
func (c *Config) Uncompensated() []string {
	var silent []string
	compensates := false
	for name, policy := range c.Tools() {
		compensates = compensates || policy.BeginsSaga
		if policy.Class != dispatch.ReadOnly && policy.Reversal.Tool == "" && !policy.Reversal.None {
			silent = append(silent, name)
		}
	}
	if !compensates {
		return nil
	}
	return silent
}
