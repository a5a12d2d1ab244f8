"""The server: people arrive, wait and leave here. It imports the engine, never the SDK.

Its rooms, each module named after what is in it:

* the floor: `database`, `tables`, `migrate`, `bulk`, `clock`, `rows`, `store`
* what people walk: `publishing`, `judging`, `reviewing`, `published`, `lifecycle`, `doors`, `bin`
* walking: `runtime`, `incoming`, `recording`, `hearing`, `waking`, `work`, `steering`, `hops`,
  `backoff`, `letters`
* being found: `scanner`, `looks`, `rules_sql`, `rules_values`, `rules_days`, `segments`
* what goes out: `outbox`, `claiming`, `governance`, `policy`, `subscriptions`, `templates`,
  `versioned`, `offering`, `deferring`, `delivery`
* how it leaves the house: `providers`, `smtp`, `mail`, `webhooks`, `signing`, `dialler`, `circuit`
* what comes back: `tasks`, `inbound`
* reading: `people`, `verify`
* running: `worker`, `upkeep`, `retention`, `holder`, `doctor`, `logline`, `__main__`
"""
