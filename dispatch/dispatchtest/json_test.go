package dispatchtest_test

import (
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

func TestTheSameJSONMayBeWrittenInManyWays(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		one, other string
		want       bool
	}{
		{`{"a":1, "b":[true,null]}`, ` { "b" : [true, null], "a": 1 } `, true},
		{`{"a":1,"a":2}`, `{"a":2}`, true},
		{`{"a":1,"a":2}`, `{"a":1}`, false},
		{`"\u00e9\/"`, `"é/"`, true},
		{`9007199254740993`, `9007199254740992`, false},
		{`1e400`, `10E+399`, true},
		{`1e99999999999999999999`, `10e99999999999999999998`, true},
		{`-0.10`, `-1e-1`, true},
		{`-0`, `0.00e7`, true},
		{`1`, `-1`, false},
		{`1`, `"1"`, false},
		{`100`, `1`, false},
		{`{}`, `[]`, false},
		{`[1]`, `[1,1]`, false},
		{`{"a":null}`, `{}`, false},
		{`{`, `{`, false},
		{`1 2`, `1`, false},
	} {
		if got := dispatchtest.SameJSON([]byte(test.one), []byte(test.other)); got != test.want {
			t.Errorf("%s and %s: %t", test.one, test.other, got)
		}
	}
}
