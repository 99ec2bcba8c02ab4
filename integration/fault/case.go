package fault

// Case is one way to break things.
type Case struct {
	Number  int
	Fault   string
	Checked string   // what must hold, and how it is seen
	Tests   []string // that inject it: folder and name, "integration/faults TestX"
}

func find(number int) (Case, bool) {
	for _, c := range Catalogue {
		if c.Number == number {
			return c, true
		}
	}
	return Case{}, false
}
