//! Figures as SVG: lines over named places on a logarithmic scale.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// One line, with at most one value per place.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it shows.
    pub name: String,
    /// Its values, by place.
    pub values: Vec<Option<f64>>,
}

/// Draws lines over places, as the text of an SVG file.
pub fn draw(title: &str, unit: &str, places: &[String], lines: &[Line]) -> Result<String> {
    let mut text = String::new();
    draw_on(SVGBackend::with_string(&mut text, (1100, 620)).into_drawing_area(), title, unit, places, lines)
        .map_err(|error| anyhow!("draw {title}: {error}"))?;
    Ok(text)
}

fn draw_on<B: DrawingBackend>(
    area: DrawingArea<B, plotters::coord::Shift>,
    title: &str,
    unit: &str,
    places: &[String],
    lines: &[Line],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let values = || lines.iter().flat_map(|line| &line.values).filter_map(|value| value.filter(|value| *value > 0.0));
    let least = values().fold(f64::INFINITY, f64::min).min(1e9) * 0.8;
    let most = values().fold(least, f64::max) * 1.25;
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..places.len().max(2) as f64 - 1.0, (least..most).log_scale())?;
    let name_of = |place: &f64| match (place - place.round()).abs() < 1e-6 {
        true => places.get(place.round() as usize).cloned().unwrap_or_default(),
        false => String::new(),
    };
    chart.configure_mesh().x_labels(places.len()).x_label_formatter(&name_of).y_desc(unit).draw()?;
    for (number, line) in lines.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        let points = line.values.iter().enumerate();
        let points = points.filter_map(|(place, value)| Some((place as f64, value.filter(|value| *value > 0.0)?)));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
            .label(line.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart.configure_series_labels().border_style(BLACK).background_style(WHITE.mix(0.8)).draw()?;
    area.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_names_its_lines_and_places() {
        let places = ["0", "1000"].map(str::to_owned);
        let line = Line { name: "create block".to_owned(), values: vec![Some(100.0), Some(110.0)] };
        let svg = draw("Density", "µs", &places, &[line]).expect("a plot");
        for word in ["<svg", "Density", "create block", "1000"] {
            assert!(svg.contains(word), "{word} is missing");
        }
    }

    #[test]
    fn values_may_be_missing() {
        let line = Line { name: "none".to_owned(), values: vec![None, Some(0.0)] };
        assert!(draw("Empty", "µs", &["a".to_owned()], &[line]).expect("a plot").contains("Empty"));
        assert!(draw("Nothing", "µs", &[], &[]).expect("a plot").contains("Nothing"));
    }
}
