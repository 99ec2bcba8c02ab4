package explore

// Kind tells the steps apart that a tour is to show; false means that a step
// need not be shown.
type Kind[S, K comparable] func(from S, step Step[S]) (K, bool)

// detour is how many steps a tour takes at most to what it has not shown yet,
// rather than begin again.
const detour = 5

// Tour is a set of walks from the start that take a step of every kind there
// is. It takes the model's properties for granted.
func Tour[S, K comparable](model Model[S], kind Kind[S, K]) [][]Step[S] {
	t := &tour[S, K]{model: model, kind: kind, shown: map[K]bool{}}
	var walks [][]Step[S]
	for _, path := range firsts(model, kind) {
		if !t.isShown(path) {
			walks = append(walks, t.walk(path))
		}
	}
	return walks
}

// firsts are shortest paths to a step of each kind, the shortest first.
func firsts[S, K comparable](model Model[S], kind Kind[S, K]) (paths [][]Step[S]) {
	known := map[K]bool{}
	var s *search[S]
	s = newSearch(model, func(from int, step Step[S]) {
		if k, counts := kind(s.states[from], step); counts && !known[k] {
			known[k] = true
			paths = append(paths, append(s.path(from), step))
		}
	})
	s.run()
	return paths
}

type tour[S, K comparable] struct {
	model Model[S]
	kind  Kind[S, K]
	shown map[K]bool
}

// isShown reports whether the last step of a path from the start was shown.
func (t *tour[S, K]) isShown(path []Step[S]) bool {
	from := t.model.Start
	if len(path) > 1 {
		from = path[len(path)-2].To
	}
	return !t.isNew(from, path[len(path)-1])
}

func (t *tour[S, K]) isNew(from S, step Step[S]) bool {
	k, counts := t.kind(from, step)
	return counts && !t.shown[k]
}

// walk takes a path, and goes on as long as something new is near.
func (t *tour[S, K]) walk(path []Step[S]) (walk []Step[S]) {
	at := t.model.Start
	for len(path) > 0 {
		for _, step := range path {
			if k, counts := t.kind(at, step); counts {
				t.shown[k] = true
			}
			at = step.To
		}
		walk = append(walk, path...)
		path = t.near(at)
	}
	return walk
}

// near is a shortest way to a step that is not shown yet.
func (t *tour[S, K]) near(at S) []Step[S] {
	type place struct {
		state S
		path  []Step[S]
	}
	seen := map[S]bool{at: true}
	for open := []place{{state: at}}; len(open) > 0; open = open[1:] {
		here := open[0]
		for _, step := range t.model.Steps(here.state) {
			path := append(here.path[:len(here.path):len(here.path)], step)
			if t.isNew(here.state, step) {
				return path
			}
			if len(path) < detour && !seen[step.To] {
				seen[step.To] = true
				open = append(open, place{step.To, path})
			}
		}
	}
	return nil
}
