package bench_test

import (
	"os"
	"strconv"
	"testing"
)

// sizeVariable makes everything smaller, or larger: the rows of one drain.
const sizeVariable = "BENCH_ROWS"

const fullRows = 200_000

// rows scales what the goals are stated for.
func rows(b testing.TB, full int) int {
	b.Helper()
	text, given := os.LookupEnv(sizeVariable)
	if !given {
		return full
	}
	size, err := strconv.Atoi(text)
	if err != nil || size < 1 {
		b.Fatalf("%s is %q; write the number of rows of one drain, such as 20000", sizeVariable, text)
	}
	return max(1, int(float64(full)*float64(size)/fullRows))
}
