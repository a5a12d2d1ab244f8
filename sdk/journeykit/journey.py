"""The former home of `journeys`; it hides the function `journeykit.journey` once it is imported."""

from journeykit.journeys import Journey as Journey
