"""The page that makes a model fit."""
