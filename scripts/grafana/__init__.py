"""Dashboards for Grafana, built by code so every query in them can be tested."""
