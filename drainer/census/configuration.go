package census

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// unconfigured is the label of everything that the configuration does not
// name: a row must never create a label.
const unconfigured = "unconfigured"

// configuration is what the labels come from.
type configuration struct {
	labels  []string // every provider, and unconfigured
	windows map[string]time.Duration
}

func configurationOf(providers []Provider) *configuration {
	c := &configuration{labels: []string{unconfigured}, windows: map[string]time.Duration{}}
	for _, provider := range providers {
		c.labels = append(c.labels, provider.Name)
		maps.Copy(c.windows, provider.RetryWindows)
	}
	return c
}

func (c *configuration) label(provider string) string {
	if slices.Contains(c.labels, provider) {
		return provider
	}
	return unconfigured
}

// nearEnd is the part of a tool's retries after which their end is near.
const nearEnd = 0.75

// nearEnds lists tools, and the seconds after a first send when the end of its
// retries is near.
func (c *configuration) nearEnds() (tools []string, seconds []float64) {
	tools, seconds = []string{}, []float64{} // NULL would not be an empty list
	for tool, window := range c.windows {
		near := window.Seconds() * nearEnd
		tools, seconds = append(tools, tool), append(seconds, near)
		if provider, operation, slashed := strings.Cut(tool, "/"); slashed && provider == operation {
			tools, seconds = append(tools, provider), append(seconds, near) // agents may leave out the slash
		}
	}
	return tools, seconds
}
