package census

import "time"

// Sample is what the tables held at one moment. What could be many is counted
// to a limit.
type Sample struct {
	Queues     []Queue
	Claims     []Claims
	NearEnd    []ProviderCount // rows in doubt whose retries end soon
	Sagas      Sagas
	Incidents  []Incidents
	Tables     []Table
	Pins       []Pin
	Duplicates []ProviderCount // since the sample before
	Collisions Collisions
}

// Queue is what waits for one provider.
type Queue struct {
	Provider string
	Waiting  int // for their time
	Due      int
	Oldest   time.Duration // how long the oldest due row has been due
}

// Claims is what is in progress for one provider.
type Claims struct {
	Provider string
	Rows     int64
	Oldest   time.Duration
	Long     int64 // rows in progress for longer than a minute
}

// ProviderCount is a number of rows of one provider.
type ProviderCount struct {
	Provider string
	Rows     int64
}

// Sagas are the agent runs that go back, or could not.
type Sagas struct {
	Begun, Failed int
	OldestBegun   time.Duration
}

// Incidents are those of one kind that nobody has acknowledged or resolved.
type Incidents struct {
	Kind         string
	Open         int
	Oldest       time.Duration
	OldestUntold time.Duration // of those that no channel was told of
}

// Table is one of the tables that change much.
type Table struct {
	Name       string
	DeadTuples int64
	Bytes      int64
}

// Pin is, of one kind of holder, the one that has kept dead rows from being
// removed for longest.
type Pin struct {
	Holder       string
	XID          string
	Transactions int64         // how many have begun since
	Held         time.Duration // 0 where this role may not see it
}

// Collisions are refused enqueues of a known key with another payload.
type Collisions struct {
	New          int64 // since the sample before
	LastProvider string
}
