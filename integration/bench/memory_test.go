package bench_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
)

// residence is resident memory, in megabytes.
type residence struct {
	own         float64 // of the process alone
	withProgram float64 // and of the program's file, whose pages the kernel takes back as it likes
}

// memory is what the process has now. It is zero where there is no /proc.
func (p *process) memory() residence {
	p.b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.child.Pid()))
	if err != nil {
		return residence{}
	}
	megabytes := func(field string) float64 {
		found := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(status)
		if found == nil {
			return 0
		}
		kilobytes, _ := strconv.ParseFloat(string(found[1]), 64)
		return kilobytes * 1024 / 1e6
	}
	return residence{own: megabytes("RssAnon"), withProgram: megabytes("VmRSS")}
}
