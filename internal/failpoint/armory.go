//go:build failpoints

package failpoint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

type action string

const (
	kill action = "kill"
	stop action = "stop"
	hold action = "hold"
	hang action = "hang"
	fail action = "fail"
	blow action = "panic"
)

const everyHit = 0

// arming is what a point does, and at which hit.
type arming struct {
	action action
	at     int // everyHit, or a count from 1
}

// armory is what is armed, and how often each point was hit.
type armory struct {
	mu   sync.Mutex
	arms map[Point]arming
	hits map[Point]int
}

// hit counts, and reports what is to be done now.
func (a *armory) hit(p Point) (action, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	arm, armed := a.arms[p]
	if !armed {
		return "", false
	}
	a.hits[p]++
	return arm.action, arm.at == everyHit || arm.at == a.hits[p]
}

func parse(text string) (*armory, error) {
	a := &armory{arms: map[Point]arming{}, hits: map[Point]int{}}
	if text == "" {
		return a, nil
	}
	for _, part := range strings.Split(text, ",") {
		point, does, found := strings.Cut(part, "=")
		if !found {
			return nil, fmt.Errorf("%q is not point=action", part)
		}
		if !slices.Contains(Points, Point(point)) {
			return nil, fmt.Errorf("there is no point %q", point)
		}
		arm, err := parseArming(does)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", point, err)
		}
		a.arms[Point(point)] = arm
	}
	return a, nil
}

func parseArming(text string) (arming, error) {
	name, at, counted := strings.Cut(text, "@")
	arm := arming{action: action(name), at: 1}
	switch arm.action {
	case kill, stop, hold, hang, fail, blow:
	default:
		return arming{}, fmt.Errorf("no action %q; there are kill, stop, hold, hang, fail and panic", name)
	}
	if !counted {
		return arm, nil
	}
	if at == "*" {
		arm.at = everyHit
		return arm, nil
	}
	var err error
	if arm.at, err = strconv.Atoi(at); err != nil || arm.at < 1 {
		return arming{}, fmt.Errorf("@%s is neither @* nor a hit from 1", at)
	}
	return arm, nil
}
